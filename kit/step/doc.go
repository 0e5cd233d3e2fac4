// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package step implements the reconcile loop of every HyperFleet controller: a list of
// named steps that run in order until one of them is not done.
//
// A step observes the current state, takes the next action, and returns one of
//
//	Done()                            continue with the next step
//	Wait(after, reason, message)      requeue after this time, or reconcile on the next event
//	WaitReady(after, reason, message) as Wait, but Ready is True: the object is as desired
//	Stall(reason, message)            a person has to act first
//	Fail(err)                         retry with back-off
//
// A function that may stop the step that calls it returns a Result, too. Done means that the step
// continues. The step returns any other result as it is:
//
//	if result := s.checkBackoff(); !result.IsDone() {
//		return result
//	}
//
// Steps never write conditions. Reconcile and ReconcileSteps derive the conditions from the list:
//
//   - A step's condition is True if the step is done. Otherwise the condition is False and has the
//     step's reason and message. If a step was not reached, its condition keeps its last value and
//     the generation that this value was reported for. A condition that was never reported is
//     Unknown with reason Pending.
//   - Ready is True if every step is done or if the run stopped at WaitReady. Otherwise Ready is
//     False and has the reason and message of the step that stopped the run. While the object is
//     being deleted, Ready is never True.
//   - Reconciling (the run waits or failed) and Stalled (a person has to act) follow kstatus: each
//     is present while it is True, and absent otherwise.
//
// Conditions only report. No code may read them as program state. A fact that cannot be observed
// again is stored in a plain status field. If such a fact must be stored before the step acts, the
// step calls SaveStatus.
//
// A step with AppliesTo is part of the list only for objects for which AppliesTo returns true.
//
// The status is patched once per run, with the difference to the object as it was read and with
// the resourceVersion of that object. If nothing changed, nothing is patched. A stale read
// therefore ends in a conflict and another run, and never loses facts. If the CRD lacks a field of
// the status, nothing of the status is written except conditions with the reason CRDOutdated.
//
// Each step produces one OpenTelemetry span and one sample of hyperfleet_step_duration_seconds,
// both under the step's name. If a step panics, the step counts as failed.
//
// [ReadinessCollector] exports the condition Ready of all objects of a kind as metrics. It reads the
// objects from a cache at each scrape.
//
// Events, counters and log lines must report only what the status already records. For that,
// steps pass callbacks to OnSaved, which run once, after the status was written. The package
// itself logs each condition that changed (INFO) and each new cause for which an object is not
// ready (WARN). Attempts that fail again for the same cause are logged at DEBUG.
package step
