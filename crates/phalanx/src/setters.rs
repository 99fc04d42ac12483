//! Structs of settings that users fill: a method of the same name sets each field.

/// Declares such a struct. Other crates cannot write it as an expression, so that a new field breaks none of them.
macro_rules! with_setters {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[doc = $doc:literal])+ pub $field:ident: $ty:ty,)* }) => {
        $(#[$about])*
        #[non_exhaustive]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $ty,)*
        }

        /// Each method sets the field of its name.
        impl $name {
            $($(#[doc = $doc])+
            #[must_use]
            pub fn $field(mut self, value: $ty) -> Self {
                self.$field = value;
                self
            })*
        }
    };
}
pub(crate) use with_setters;
