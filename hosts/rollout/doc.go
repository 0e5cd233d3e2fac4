// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout says which hosts of a fleet may be pushed to now. It is pure.
//
//	Policy, State, Hosts, desired hash, now ──► Decide ──► State with permits, Report
//
// A permit is given to one host for one push and has a number. A host uses it up, or gives
// it back, by noting its number; until then it counts as in flight, whoever runs the
// program. As the permits of a fleet are one value, there are never more than allowed.
//
//   - At most MaxUnavailable permits are out.
//   - A host that is available gets one only while fewer than MaxUnavailable hosts are
//     unavailable: in flight, unreachable, or failed for good. Those that are unavailable
//     anyway may go at any time: it may be what fixes them.
//   - Canaries go first: until so many hosts have the configuration, no more are in flight
//     than are missing.
//   - Too many hosts that refuse a configuration stop it, until it is another or somebody
//     resumes the fleet.
//   - An update of a host's operating system is one more update: the desired hash names its
//     version as well, and a host has that hash when it has both.
//   - Jitter and maintenance windows hold back updates. Repairs wait for neither, nor for
//     canaries, and are not stopped: what they bring is what the host had. Pausing holds
//     back everything.
//   - First boots need no permit: there is nothing on the host yet that could suffer. What
//     they refuse counts towards the threshold.
package rollout
