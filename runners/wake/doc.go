// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wake brings reconcile requests from outside the API server: a hypervisor's
// task that ended, a machine's report, a forge's answer.
package wake
