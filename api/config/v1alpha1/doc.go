// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the operator's configuration file: strict, versioned YAML, kept
// in a ConfigMap. Every field can also be set by a HYPERFLEET_* environment variable
// and by a flag, in that order of precedence.
package v1alpha1
