// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

func newSample(t testing.TB) (protocol.Config, *rsa.PrivateKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Config{
		Runner:      protocol.RunnerFile{AgentID: "7", AgentName: "vm", ServerURL: "http://x", GitHubURL: "http://x/o/r", Ephemeral: "True"},
		Credentials: protocol.CredentialsFile{Scheme: "OAuth", Data: protocol.CredentialsData{ClientID: "c"}},
		RSA:         protocol.NewRSAParams(key),
	}, key
}

// TestBlob tests that a just-in-time config is base64 of JSON whose values are base64 of the three
// files, and that the key is unchanged after decoding.
func TestBlob(t *testing.T) {
	config, key := newSample(t)
	blob, err := protocol.EncodeJIT(config)
	requireNoError(t, err)
	text, err := base64.StdEncoding.DecodeString(blob)
	requireNoError(t, err)
	var files map[string]string
	requireNoError(t, json.Unmarshal(text, &files))
	runner, err := base64.StdEncoding.DecodeString(files[".runner"])
	if err != nil || !strings.Contains(string(runner), `"AgentId":"7"`) || len(files) != 3 {
		t.Errorf("files %v, .runner %s, %v", files, runner, err)
	}
	got, err := protocol.DecodeJIT(blob)
	if diff := cmp.Diff(config, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if same, err := got.RSA.DecodeKey(); err != nil || !same.Equal(key) {
		t.Errorf("the key did not survive: %v", err)
	}
}

func TestBadBlobs(t *testing.T) {
	enc := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, blob := range map[string]string{
		"empty": "", "not base64": "%", "not JSON": enc("x"), "no files": enc("{}"),
		"too long":      strings.Repeat("A", 64<<10+4),
		"empty files":   enc(`{".runner":"e30=",".credentials":"e30=",".credentials_rsaparams":"e30="}`),
		"file not JSON": enc(`{".runner":"eA==",".credentials":"e30=",".credentials_rsaparams":"e30="}`),
	} {
		if _, err := protocol.DecodeJIT(blob); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	config, _ := newSample(t)
	for name, change := range map[string]func(*protocol.RSAParamsFile){
		"empty modulus": func(f *protocol.RSAParamsFile) { f.Modulus = "" },
		"wrong d":       func(f *protocol.RSAParamsFile) { f.D = f.P },
		"huge exponent": func(f *protocol.RSAParamsFile) { f.Exponent = f.Modulus },
	} {
		params := config.RSA
		change(&params)
		if _, err := params.DecodeKey(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTokens(t *testing.T) {
	_, key := newSample(t)
	_, other := newSample(t)
	token, err := protocol.Sign(key, protocol.Claims{Issuer: json.RawMessage(`"me"`), Subject: "s", ExpiresAt: "5"})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := protocol.Verify(&key.PublicKey, token)
	if err != nil || claims.IssuerText() != "me" || claims.Subject != "s" {
		t.Errorf("claims %+v, %v", claims, err)
	}
	parts := strings.Split(token, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for name, invalid := range map[string]string{
		"two parts": parts[0] + "." + parts[1], "alg none": none + "." + parts[1] + ".",
		"changed claims": parts[0] + "." + none + "." + parts[2], "no base64": "%.%.%", "signature cut": token[:len(token)-8],
	} {
		if _, err := protocol.Verify(&key.PublicKey, invalid); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := protocol.Verify(&other.PublicKey, token); err == nil {
		t.Error("another key's token was accepted")
	}
}

func FuzzDecodeJIT(f *testing.F) {
	config, _ := newSample(f)
	blob, err := protocol.EncodeJIT(config)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blob)
	f.Add(base64.StdEncoding.EncodeToString([]byte(`{".runner":"e30="}`)))
	f.Fuzz(func(t *testing.T, blob string) {
		config, err := protocol.DecodeJIT(blob)
		if err != nil {
			return
		}
		_, _ = config.RSA.DecodeKey()
		again, err := protocol.EncodeJIT(config)
		if err != nil {
			t.Fatal(err)
		}
		same, err := protocol.DecodeJIT(again)
		if err != nil || same != config {
			t.Errorf("round trip: %+v, %v", same, err)
		}
	})
}

func FuzzVerify(f *testing.F) {
	_, key := newSample(f)
	token, err := protocol.Sign(key, protocol.Claims{Subject: "s"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := protocol.Verify(&key.PublicKey, text); err == nil && text != token {
			t.Errorf("an unsigned token was accepted: %q", text)
		}
	})
}
