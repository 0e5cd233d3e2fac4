// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package step is the reconcile loop of every HyperFleet controller: a list of
// named steps, run in order until one is not done.
//
// A step looks at the world, does the next thing, and returns one of
//
//	Done()                        go on with the next step
//	Wait(after, reason, message)  look again later, or on the next event
//	Steady(after, reason, message)  as it should be; go on when the world does
//	Stall(reason, message)        a person has to act first
//	Fail(err)                     try again with back-off
//
// Steps never write conditions. Run does that, from the list:
//
//   - A step's condition is True when it is done, else False with the step's
//     reason and message. Conditions of steps that were not reached keep what was
//     last said of them, with the generation it was said of; those never reported
//     are Unknown with reason Pending.
//   - Ready is True when every step is done or the one that stopped rests, else False with the reason and message
//     of the step that stopped the run. While the object is being deleted Ready is
//     never True.
//   - Reconciling (the run waits or failed) and Stalled (a person must act) follow
//     kstatus: present while true, absent otherwise.
//
// Conditions are reports. Nothing may read them as program state: facts that
// can't be observed again are plain status fields, and a step that must have such
// a fact on disk before it acts calls Save.
//
// A step with When is in the list only of the objects that it is true for.
//
// The status is patched once per run, with the difference to the object as it was
// read and its resourceVersion, and not at all when nothing changed. A stale read
// therefore ends in a conflict and another run, never in lost facts.
//
// Each step yields one OpenTelemetry span and one sample of
// hyperfleet_step_duration_seconds, both under the step's name. A panic in a step is a
// failure of that step.
//
// Events, counters and lines in the log are for what is on record: steps hand them to
// OnSaved, and they run after the write of the status, once. Run itself logs each
// condition that changed (INFO), and each new cause for which an object is not ready
// (WARN); tries that fail for the same cause again are DEBUG.
package step
