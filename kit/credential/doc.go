// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credential says which servers the values of a Secret may be sent to.
package credential
