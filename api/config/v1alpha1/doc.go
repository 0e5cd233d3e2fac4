// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the configuration file of the operator: strict, versioned YAML that is stored in a
// ConfigMap. Every field can also be set with a HYPERFLEET_* environment variable or with a flag. An
// environment variable overrides the file, and a flag overrides both.
package v1alpha1
