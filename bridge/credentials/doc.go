// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credentials parses the Secrets that a bridge names: SSH public keys, and a Docker
// configuration with the credentials for registries. Errors never contain content of a Secret.
package credentials
