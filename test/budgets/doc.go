// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package budgets shows that nothing a tenant writes takes much of the operator: whatever is in
// one text of theirs, reading it has the process grow by 16 MiB and work for a second at most.
package budgets
