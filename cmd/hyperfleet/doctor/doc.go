// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor implements `hyperfleet doctor`. The command checks that the CRDs and RBAC roles of each area
// are installed, that an operator runs for each area, and that no object needs a person. It changes no
// object, unless --try asks it to create a test machine.
package doctor
