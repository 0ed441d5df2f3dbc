//! Which servers of a service have the names: that is fixed when the first name is made.

use forebay_model::{Error, ErrorKind, Homes, Members, Result};
use forebay_store::{Store, homes, names_with_the_first};

/// Fails if a store was used in a service whose names were elsewhere: they would not be found.
pub(crate) fn check_homes(store: &Store, members: &Members) -> Result<()> {
    let (was, is) = (homes(&**store.meta())?, members.homes());
    if was == is {
        return Ok(());
    }
    // The root is made with the store, and whoever was met is noted.
    let used = store.names().count() > 1 || store.meta().get(super::joining::KEY)?.is_some();
    if used || was == Homes::First {
        let text = match is {
            Homes::First => {
                "keeps names of a service that spreads them over its servers, and a back end wants them all with the \
                 first: begin with empty stores, or without the back end"
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
