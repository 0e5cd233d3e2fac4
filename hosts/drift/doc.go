// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drift says what has to happen to a host now: nothing, a push, a wait, or that it
// has failed for good. It is pure.
//
//	desired hash ─┐                      ┌─► Nothing
//	applied hash ─┼─► Decide ─► Decision ┼─► FirstBoot, Update, Repair, OSUpdate
//	lost parts   ─┤                      ├─► Wait until
//	failures     ─┘                      └─► Terminal
//
// What a host has refused counts against the configuration that it refused, so that the
// next one starts anew. A host that can't be reached has refused nothing. An update of its
// operating system (os.go) goes over many looks, and a host that is away meanwhile restarts.
package drift
