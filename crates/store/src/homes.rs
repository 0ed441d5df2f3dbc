//! Which servers of the service hold names, as a store records it.

use crate::meta::{Batch, KeySpace, Kv};
use forebay_model::{Homes, Result};

/// Present only if the first server holds all names.
const KEY: &[u8] = KeySpace::NamesWithFirst.prefix();

/// Which servers hold names.
pub fn homes(kv: &dyn Kv) -> Result<Homes> {
    Ok(match kv.get(KEY)? {
        Some(_) => Homes::First,
        None => Homes::Spread,
    })
}

/// Records that the first server holds all names.
pub fn names_with_the_first(kv: &dyn Kv) -> Result<()> {
    let mut batch = Batch::default();
    batch.put(KEY, [1]);
    kv.commit(batch)?;
    kv.sync()
}
