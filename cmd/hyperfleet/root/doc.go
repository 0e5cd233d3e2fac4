// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package root has the root command of the program hyperfleet. hack/mandoc also uses it.
package root
