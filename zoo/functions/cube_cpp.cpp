// x³ and its gradient 3 x² grad, one loop each. float16 and bfloat16 are computed in float32 and rounded once.

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace {

at::Tensor cube(const at::Tensor& x) {
  const at::Tensor from = x.contiguous();
  at::Tensor to = at::empty_like(from);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from.scalar_type(), "cube_cpp", [&] {
    const scalar_t* in = from.const_data_ptr<scalar_t>();
    scalar_t* out = to.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < from.numel(); ++i) {
      const at::opmath_type<scalar_t> value = in[i];
      out[i] = static_cast<scalar_t>(value * value * value);
    }
  });
  return to;
}

at::Tensor cube_backward(const at::Tensor& grad, const at::Tensor& x) {
  TORCH_CHECK_VALUE(grad.sizes() == x.sizes(), "cube_cpp: grad must have the shape of x, ", x.sizes(), ", got ",
                    grad.sizes());
  TORCH_CHECK_TYPE(grad.scalar_type() == x.scalar_type(), "cube_cpp: grad must have the dtype of x, ", x.scalar_type(),
                   ", got ", grad.scalar_type());
  const at::Tensor from = x.contiguous(), slopes = grad.contiguous();
  at::Tensor to = at::empty_like(from);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, from.scalar_type(), "cube_cpp", [&] {
    const scalar_t* in = from.const_data_ptr<scalar_t>();
    const scalar_t* slope = slopes.const_data_ptr<scalar_t>();
    scalar_t* out = to.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < from.numel(); ++i) {
      const at::opmath_type<scalar_t> value = in[i];
      out[i] = static_cast<scalar_t>(3 * value * value * static_cast<at::opmath_type<scalar_t>>(slope[i]));
    }
  });
  return to;
}

}  // namespace

TORCH_LIBRARY(torch_conformance_cpp, library) {
  library.def("cube(Tensor x) -> Tensor");
  library.def("cube_backward(Tensor grad, Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(torch_conformance_cpp, CPU, library) {
  library.impl("cube", &cube);
  library.impl("cube_backward", &cube_backward);
}
