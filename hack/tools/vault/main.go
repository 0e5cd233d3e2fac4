// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/vault-plugin-auth-jwt"
	_ "github.com/hashicorp/vault-plugin-secrets-kv"
	_ "github.com/hashicorp/vault/builtin/credential/cert"
	_ "github.com/hashicorp/vault/http"
	_ "github.com/hashicorp/vault/sdk/physical/inmem"
	_ "github.com/hashicorp/vault/vault"
)

func main() {}
