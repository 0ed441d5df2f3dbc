//! Influence of each application: the idle time without it, and with more frequent bursts.

use crate::{App, Chain, Error, Metrics, Platform, Probability};

/// The influence of one application.
#[derive(Clone, PartialEq, Debug)]
pub struct Influence {
    /// Its name.
    pub name: String,
    /// Its share of the mean load.
    pub load_share: f64,
    /// Idle time without it.
    pub idle_without: f64,
    /// Idle time with bursts a tenth more frequent.
    pub idle_more: f64,
}

/// The influence of every application, in their order.
pub fn sensitivity(apps: &[App], platform: &Platform) -> Result<Vec<Influence>, Error> {
    let idle = |apps: &[App]| -> Result<f64, Error> { Ok(Metrics::of(&Chain::of(apps, platform)?)?.idle) };
    let total = crate::expected_load(apps);
    let mut changed = apps.to_vec();
    let mut influences = Vec::with_capacity(apps.len());
    for (i, app) in apps.iter().enumerate() {
        changed[i].p = Probability::default();
        let idle_without = idle(&changed)?;
        // p must stay below one.
        changed[i].p = Probability::new((app.p.get() * 1.1).min((1.0 + app.p.get()) / 2.0))?;
        let idle_more = idle(&changed)?;
        changed[i] = app.clone();
        let load_share = if total > 0.0 { app.load() / total } else { 0.0 };
        influences.push(Influence { name: app.name.clone(), load_share, idle_without, idle_more });
    }
    Ok(influences)
}
