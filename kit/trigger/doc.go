// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trigger brings reconcile requests from outside the API server: a hypervisor's
// task that ended, a machine's report, a CI platform's answer, work at a host that is over.
package trigger
