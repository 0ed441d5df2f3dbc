//! Which servers of a service hold names: fixed when the first name is created.

use forebay_model::{Error, ErrorKind, Homes, Members, Result};
use forebay_store::{Store, homes, names_with_the_first};

/// Fails if a store was used in a service with another distribution of names: they would not be found.
pub(crate) fn check_homes(store: &Store, members: &Members) -> Result<()> {
    let (was, is) = (homes(&**store.meta())?, members.homes());
    if was == is {
        return Ok(());
    }
    // The root is created with the store, and every server that was met is recorded.
    let used = store.names().count() > 1 || store.meta().get(super::membership::KEY)?.is_some();
    if used || was == Homes::First {
        let text = match is {
            Homes::First => {
                "holds names of a service that spreads them over its servers, and a back end needs them all on the \
                 first: start with empty stores, or without the back end"
            }
            Homes::Spread => {
                "belongs to a service whose first server has all names, because of its back end: give it back its back \
                 end"
            }
        };
        return Err(Error::new(ErrorKind::BadStore, format!("the store {} {text}", store.dir().display())));
    }
    names_with_the_first(&**store.meta())
}
