"""Options under `export`."""

from __future__ import annotations

from torchair.configs.kinds import Raw
from torchair.configs.option import REDUCE, Group, Nested
from torchair.configs.option_kinds import graph


class ExportExperimental(Group):
    """Additional contents of an exported graph."""

    enable_record_nn_module_stack = graph(
        False,
        "Attach the module stack to each op as attribute `nn_module_stack`.",
        idle=REDUCE,
        effect="tests/backend/export/test_files.py::test_modules_are_recorded",
    )
    auto_atc_config_generated = graph(
        False,
        "Also write the JSON templates for several devices if the graph communicates.",
        idle=REDUCE,
        effect="tests/backend/export/test_files.py::test_templates_for_several_devices",
    )
    enable_lite_export = graph(
        False, "Use the converters of the lite set; they override all others for their ops.", acts=False
    )


class ExportConfig(Group, open=True):
    """The arguments of `dynamo_export`, for scripts that read or set them as options."""

    export_mode = graph(
        False, "Export instead of running: call `dynamo_export` for that.", Raw(), plain=True, acts=False
    )
    export_path_dir = graph(
        "./", "The argument `export_path` of `dynamo_export`.", Raw(), plain=True, cached=False, acts=False
    )
    export_name = graph(None, "The argument of `dynamo_export`.", Raw(), plain=True, cached=False, acts=False)
    weight_name = graph(
        None,
        "Maps the id of a weight tensor to its qualified name; `dynamo_export` reads the names from "
        "the model.",
        Raw(),
        plain=True,
        cached=False,
        acts=False,
    )
    inputs_name = graph(None, "Unused; for old scripts.", Raw(), plain=True, cached=False, acts=False)
    experimental = Nested(ExportExperimental)
