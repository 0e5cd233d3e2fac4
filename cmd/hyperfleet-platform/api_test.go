// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/api"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

func TestInvalidAPIConfigurations(t *testing.T) {
	for name, tc := range map[string]struct {
		config string
		args   []string
		want   []string
	}{
		"nothing":                     {"", nil, []string{"database.url_file"}},
		"unknown field":               {"database:\n  url_file: /x\n  urlfile: /y\n", nil, []string{":3:", "urlfile"}},
		"a certificate without a key": {"database: {url_file: /x}\nserver: {tls_cert_file: /c}\n", nil, []string{"tls_cert_file", "tls_key_file"}},
		"no issuer":                   {"database: {url_file: /x}\nserver: {jwt: {configs: [{jwk_cert_url: http://x}]}}\n", nil, []string{"server.jwt.configs", "issuer_url"}},
		"issuers": {
			"database: {url_file: /x}\nserver:\n  jwt:\n    configs:\n    - {issuer_url: i, jwk_cert_url: http://x, jwk_cert_file: /y}\n" +
				"    - {issuer_url: i, jwk_cert_file: /y, jwk_cert_ca_file: /z}\nroles: [{role: admin, values: [a]}, {role: admin, values: [a], issuer: j}]\n", nil,
			[]string{"set either jwk_cert_url or jwk_cert_file", "it is listed more than once", "set jwk_cert_url", "roles[0]: issuer", "it is not in server.jwt.configs"},
		},
		"tenants": {
			"database: {url_file: /x}\nserver:\n  tenant:\n    system_header: S\n    dimensions:\n    - {key: a, claim: c}\n    - {key: a, header: s}\n    - {claim: c, header: H}\n", nil,
			[]string{"set server.jwt", "dimensions[1]: key", "dimensions[1]: header", "dimensions[2]: set either claim or header", "make at least one of them required", "all_tenants"},
		},
		"a tenant without dimensions":                   {"database: {url_file: /x}\nserver: {tenant: {system_header: S}}\n", nil, []string{"without dimensions"}},
		"roles without issuers":                         {"database: {url_file: /x}\nroles: [{role: admin, values: [a]}]\n", nil, []string{"roles", "set server.jwt"}},
		"no authentication, all addresses":              {"database: {url_file: /x}\n", nil, []string{"server.address", "insecure_no_authentication"}},
		"no authentication, private address":            {"database: {url_file: /x}\nserver: {address: '10.0.0.1:80'}\n", nil, []string{"server.address"}},
		"authentication and insecure_no_authentication": {"database: {url_file: /x}\nserver: {jwt: {configs: [{issuer_url: i, jwk_cert_file: /y}]}}\ninsecure_no_authentication: true\n", nil, []string{"cannot be used with server.jwt", "without roles"}},
		"invalid roles": {
			"database: {url_file: /x}\nserver: {jwt: {configs: [{issuer_url: i, jwk_cert_file: /y}]}}\nroles:\n- {role: king}\n- {role: adapter, values: [a]}\n" +
				"- {role: reader, values: ['*'], adapters: [a]}\n- {role: adapter, values: [a], adapters: ['*']}\n", nil,
			[]string{`role "king"`, "values:", "set either adapters or adapter_claim", "only allowed with role adapter", "a caller cannot report as any adapter"},
		},
		"level":                 {"database: {url_file: /x}\nlog: {level: loud}\n", nil, []string{"log.level"}},
		"invalid flag":          {"database: {url_file: /x}\n", []string{"--stuck-after=-1s"}, []string{"stuck_after"}},
		"schemas":               {"database: {url_file: /x}\nspec_schemas: /none\n", nil, []string{"spec_schemas"}},
		"several invalid kinds": {"database: {url_file: /x}\nentities:\n- {kind: A, plural: as, parent_kind: B}\n- {kind: A, plural: changes}\n", nil, []string{`"B" is not registered`, "registered more than once", "route of the API"}},
		"invalid expression":    {"database: {url_file: /x}\nentities:\n- kind: A\n  plural: as\n  conditions:\n  - type: M\n    when: {expression: nope}\n", nil, []string{"unknown variable or function nope"}},
		"not a kind list":       {"database: {url_file: /x}\nentities: 3\n", nil, []string{"entities"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spelling.Execute(api.New(), append([]string{"config", "validate", "--config", writeFile(t, "api.yaml", tc.config)}, tc.args...)...)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not contain %q", err, want)
				}
			}
		})
	}
}
