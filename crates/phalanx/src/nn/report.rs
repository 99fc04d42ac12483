//! A step as it was predicted and measured.

use super::TrainingRun;
use crate::Error;
use crate::job::RankSpans;
use crate::overlap::Overview;
use crate::timeline::TimelineReport;

impl TrainingRun<'_> {
    /// Measures when every operation runs, from the next step on.
    pub fn measure(&mut self) -> Result<(), Error> {
        self.guarded(|run| {
            run.settle()?;
            if run.profile.is_none() {
                run.profile = Some(run.trainer.session_mut().profile());
            }
            Ok(())
        })
    }

    /// The step as predicted, beside the last one if it was measured. In a job all ranks call it together and the first one
    /// gets the report.
    pub fn report(&mut self) -> Result<Option<TimelineReport>, Error> {
        self.guarded(|run| {
            run.settle()?;
            let measured = run.profile.as_ref().filter(|profile| profile.runs() > 0);
            let overview = || Overview::new(&run.built.graph, &run.settings);
            let (Some(ranks), Some(profile)) = (&run.ranks, measured) else {
                let Some(profile) = measured else { return Ok(Some(overview()?.report())) };
                return Ok(Some(overview()?.report_beside(&profile.last_run())));
            };
            let network = &*ranks.network;
            let spans = ranks.between_steps(|| RankSpans::gather(network, profile))?;
            if network.rank() > 0 {
                return Ok(None);
            }
            let (whole, placement) = (run.session().program(), &ranks.topology.placement);
            Ok(Some(overview()?.report_beside_ranks(whole, placement, &spans)?))
        })
    }
}
