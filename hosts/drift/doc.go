// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drift decides which action a host needs now: nothing, a push, a back-off, or none because
// it failed terminally. The package is pure.
//
//	desired hash ─┐                      ┌─► Nothing
//	applied hash ─┼─► Decide ─► Decision ┼─► FirstBoot, Update, Repair, OSUpdate
//	lost parts   ─┤                      ├─► Wait until
//	failures     ─┘                      └─► Terminal
//
// A refusal counts against the configuration that the host refused, so the next configuration
// starts with no failed attempts. A host that is unreachable has refused nothing. An update of the
// operating system (os.go) takes many reconciles, and a host that is unreachable during the update
// is taken to be restarting.
package drift
