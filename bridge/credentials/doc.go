// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credentials reads the Secrets that a bridge names: SSH public keys, and the Docker
// configuration with credentials for registries. No error holds any of a Secret's content.
package credentials
