/*
 * Prototypes of ops of your own. `make generate_ge_raw_custom_ops` writes a Python function for each of them
 * into auto_generated_ge_raw_custom_ops.py, to be called by a converter; see examples/example_custom_op_register.
 */

/**
 * @brief Adds two tensors.
 * @par Inputs:
 * input1: a tensor.
 * input2: a tensor of the same type and shape.
 * @par Outputs:
 * output: a tensor of that type and shape.
 */
REG_OP(CustomOp)
    .INPUT(input1, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
    .INPUT(input2, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
    .OUTPUT(output, TensorType({DT_FLOAT, DT_FLOAT16, DT_BF16, DT_INT32, DT_INT64}))
    .OP_END_FACTORY_REG(CustomOp)
