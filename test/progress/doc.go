// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress prints the progress of long tests. The output of Log and Error of package testing looks
// the same, and hack/testrun shows it as the reason of a failure. The output of this package is not shown
// as a reason.
package progress
