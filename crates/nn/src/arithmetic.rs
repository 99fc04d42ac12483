//! Operators between tensors, and between tensors and numbers on either side.

use std::ops::{Add, Div, Mul, Neg, Sub};

use phalanx_ir::{Binary, Unary};

use crate::Tensor;

/// An operator between two tensors, and with a number on the right.
macro_rules! operator {
    ($trait:ident $method:ident $kind:ident $scalar:ident) => {
        operator!(@tensors $trait $method $kind; &Tensor, &Tensor; &Tensor, Tensor; Tensor, &Tensor; Tensor, Tensor);

        impl $trait<f32> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f32) -> Tensor {
                self.unary(stringify!($method), Unary::$scalar(other))
            }
        }

        impl $trait<f32> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f32) -> Tensor {
                (&self).$method(other)
            }
        }

        impl $trait<Tensor> for f32 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                self.$method(&other)
            }
        }
    };
    (@tensors $trait:ident $method:ident $kind:ident; $($left:ty, $right:ty);*) => {$(
        impl $trait<$right> for $left {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $right) -> Tensor {
                self.binary(stringify!($method), Binary::$kind, &other)
            }
        }
    )*};
}

operator!(Add add Add AddScalar);
operator!(Sub sub Sub SubScalar);
operator!(Mul mul Mul MulScalar);
operator!(Div div Div DivScalar);

impl Add<&Tensor> for f32 {
    type Output = Tensor;
    #[track_caller]
    fn add(self, other: &Tensor) -> Tensor {
        other + self
    }
}

impl Mul<&Tensor> for f32 {
    type Output = Tensor;
    #[track_caller]
    fn mul(self, other: &Tensor) -> Tensor {
        other * self
    }
}

/// The number becomes a constant of the graph, so that nothing is rounded twice.
impl Sub<&Tensor> for f32 {
    type Output = Tensor;
    #[track_caller]
    fn sub(self, other: &Tensor) -> Tensor {
        other.constant(self).binary("sub", Binary::Sub, other)
    }
}

/// The number becomes a constant of the graph, so that nothing is rounded twice.
impl Div<&Tensor> for f32 {
    type Output = Tensor;
    #[track_caller]
    fn div(self, other: &Tensor) -> Tensor {
        other.constant(self).binary("div", Binary::Div, other)
    }
}

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.unary("neg", Unary::Neg)
    }
}

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        -&self
    }
}
