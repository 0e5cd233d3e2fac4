// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adapter defines an adapter's two files. The deployment configuration defines where the adapter
// runs and which APIs it calls. The task file defines what the adapter does with an event. Both are
// strict YAML: an unknown field is an error with its line.
package adapter
