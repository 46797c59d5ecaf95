"""Options under `export`."""

from __future__ import annotations

from torchair.configs.kinds import Raw
from torchair.configs.option import REDUCE, Group, Nested
from torchair.configs.option_kinds import graph


class ExportExperimental(Group):
    """What an exported graph contains beyond the ops."""

    enable_record_nn_module_stack = graph(
        False,
        "Attach the stack of modules to each op as attribute `nn_module_stack`.",
        idle=REDUCE,
        effect="tests/backend/export/test_files.py::test_modules_are_recorded",
    )
    auto_atc_config_generated = graph(
        False,
        "Also write the JSON templates for several devices, where a graph talks to others.",
        idle=REDUCE,
        effect="tests/backend/export/test_files.py::test_templates_for_several_devices",
    )
    enable_lite_export = graph(
        False, "Use the converters of the lite set; they override all others for their ops.", acts=False
    )


class ExportConfig(Group, open=True):
    """What `dynamo_export` takes as arguments; here for scripts that read or set it."""

    export_mode = graph(
        False, "Export instead of running: call `dynamo_export` for that.", Raw(), plain=True, acts=False
    )
    export_path_dir = graph(
        "./", "The argument `export_path` of `dynamo_export`.", Raw(), plain=True, cached=False, acts=False
    )
    export_name = graph(None, "The argument of `dynamo_export`.", Raw(), plain=True, cached=False, acts=False)
    weight_name = graph(
        None,
        "id of a weight tensor -> its qualified name: `dynamo_export` asks the model.",
        Raw(),
        plain=True,
        cached=False,
        acts=False,
    )
    inputs_name = graph(None, "Kept for old scripts; unused.", Raw(), plain=True, cached=False, acts=False)
    experimental = Nested(ExportExperimental)
