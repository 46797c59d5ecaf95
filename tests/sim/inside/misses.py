RANDOM = frozenset("""bernoulli cauchy exponential geometric log_normal multinomial normal normal:in_place normal:number_mean
uniform rand_like randn randn_like randint randint_like nn.functional.rrelu nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
nn.functional.alpha_dropout nn.functional.feature_alpha_dropout:with_train nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
nn.functional.multi_head_attention_forward nn.functional.scaled_dot_product_attention""".split())
