//! Which servers of its service have names, as a store remembers it.

use crate::meta::{Batch, Kv};
use forebay_model::{Homes, Result};

/// There only where the first server has all names.
const KEY: &[u8] = b"f";

/// Which servers have names.
pub fn homes(kv: &dyn Kv) -> Result<Homes> {
    Ok(match kv.get(KEY)? {
        Some(_) => Homes::First,
        None => Homes::Spread,
    })
}

/// From now on the first server has all names.
pub fn names_with_the_first(kv: &dyn Kv) -> Result<()> {
    let mut batch = Batch::default();
    batch.put(KEY, [1]);
    kv.commit(batch)?;
    kv.sync()
}
