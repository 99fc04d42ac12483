//! What can be fed: slices, vectors and arrays of numbers, by the names of inputs.

use crate::{Error, Feed};

/// An element that can be fed.
pub trait Element: Sized {
    /// Elements as a feed.
    fn feed(values: &[Self]) -> Feed<'_>;
}

macro_rules! elements {
    ($($ty:ty: $variant:ident,)*) => {$(
        impl Element for $ty {
            fn feed(values: &[Self]) -> Feed<'_> {
                Feed::$variant(values)
            }
        }

        impl From<Vec<$ty>> for OwnedFeed {
            fn from(values: Vec<$ty>) -> Self {
                OwnedFeed::$variant(values)
            }
        }
    )*};
}

elements! { f32: F32, i64: I64, i32: I32, bool: Bool, }

/// Values for one input, with their memory: what a loader of one's own can give for inputs of different types.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnedFeed {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit integers.
    I64(Vec<i64>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// Truth values.
    Bool(Vec<bool>),
}

/// What can be fed to one input.
pub trait AsFeed {
    /// As a feed.
    fn as_feed(&self) -> Feed<'_>;
}

impl<T: AsFeed + ?Sized> AsFeed for &T {
    fn as_feed(&self) -> Feed<'_> {
        (**self).as_feed()
    }
}

impl<E: Element> AsFeed for [E] {
    fn as_feed(&self) -> Feed<'_> {
        E::feed(self)
    }
}

impl<E: Element, const N: usize> AsFeed for [E; N] {
    fn as_feed(&self) -> Feed<'_> {
        E::feed(self)
    }
}

impl<E: Element> AsFeed for Vec<E> {
    fn as_feed(&self) -> Feed<'_> {
        E::feed(self)
    }
}

impl AsFeed for Feed<'_> {
    fn as_feed(&self) -> Feed<'_> {
        *self
    }
}

impl AsFeed for OwnedFeed {
    fn as_feed(&self) -> Feed<'_> {
        match self {
            OwnedFeed::F32(values) => Feed::F32(values),
            OwnedFeed::I64(values) => Feed::I64(values),
            OwnedFeed::I32(values) => Feed::I32(values),
            OwnedFeed::Bool(values) => Feed::Bool(values),
        }
    }
}

/// The inputs of a step: an array, slice or vector of names with values of one type, or a tuple of names with values of
/// different types: `(("image", &image), ("label", &label))`.
pub trait Feeds {
    /// Calls `feed` with every name and its values.
    fn each(&self, feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error>;
}

impl<N: AsRef<str>, T: AsFeed> Feeds for [(N, T)] {
    fn each(&self, feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error> {
        self.iter().try_for_each(|(name, values)| feed(name.as_ref(), values.as_feed()))
    }
}

impl<N: AsRef<str>, T: AsFeed, const COUNT: usize> Feeds for [(N, T); COUNT] {
    fn each(&self, feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error> {
        self[..].each(feed)
    }
}

impl<N: AsRef<str>, T: AsFeed> Feeds for Vec<(N, T)> {
    fn each(&self, feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error> {
        self[..].each(feed)
    }
}

impl<T: Feeds + ?Sized> Feeds for &T {
    fn each(&self, feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error> {
        (**self).each(feed)
    }
}

/// Nothing: all inputs keep their values.
impl Feeds for () {
    fn each(&self, _: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error> {
        Ok(())
    }
}

/// Tuples of names with values of different types.
macro_rules! tuples {
    ($($($ty:ident $at:tt),*;)*) => {$(
        impl<$($ty: AsFeed),*> Feeds for ($((&str, $ty),)*) {
            fn each(&self, feed: &mut dyn FnMut(&str, Feed<'_>) -> Result<(), Error>) -> Result<(), Error> {
                $(feed(self.$at.0, self.$at.1.as_feed())?;)*
                Ok(())
            }
        }
    )*};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}
