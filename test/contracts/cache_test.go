// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// changeCache sets a template's Actions cache to a URL.
func changeCache(url string) change { return change{"spec.cache": anyMap{"actionsCacheUrl": url}} }

func listCacheRejections() []rejection {
	const (
		cache, isURL = "spec.cache.actionsCacheUrl", "it must be a URL such as https://cache.example.com"
		mirror       = "spec.cache.registryMirrors[0]"
		open         = "http is only allowed for private addresses"
	)

	with := func(name, value string) change { return change{"spec.environment": anyMap{name: value}} }

	return []rejection{
		{"cache by name", changeCache("cache"), cache, isURL},
		{"cache over FTP", changeCache("ftp://10.0.0.1"), cache, isURL},
		{"cache with a password", changeCache("https://user:word@cache.example.com"), cache, isURL},
		{"cache with a token", changeCache("https://cache.example.com/?token=t"), cache, isURL},
		{"cache in the open", changeCache("http://cache.example.com"), cache, open},
		{"cache at a public address", changeCache("http://203.0.113.7:3000"), cache, open},
		{"cache at a public IPv6 address", changeCache("http://[2001:db8::1]:3000"), cache, open},
		{"mirror in the open", change{"spec.cache": anyMap{"registryMirrors": list{"http://172.32.0.1"}}}, mirror, open},
		{"invalid variable name", with("a-b", "c"), "spec.environment", "environment must have names of letters"},
		{"variable of the runner", with("ACTIONS_RUNNER_INPUT_TOKEN", "t"), "spec.environment", "because the bootstrap service uses them"},
		{
			"variable with a password", with("HTTPS_PROXY", "http://u:p@proxy:3128"),
			"spec.environment[HTTPS_PROXY]", "it must not contain a password",
		},
	}
}

func TestCachesOfPrivateNetworksAreAccepted(t *testing.T) {
	t.Parallel()

	for _, url := range []string{
		"https://cache.example.com", "http://10.20.0.5:3000/", "http://172.31.0.1", "http://192.168.1.1", "http://[fd00::1]:3000",
		"http://cache", "http://cache.ci.internal:3000/base",
	} {
		if err := newStrictClient().Create(t.Context(), changeCache(url).apply(t, baseTemplate), client.DryRunAll); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}
