// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/test/secrets"
)

const marker = `ghp_planted/+"0123456789&abcdef`

func newPrivateKey(t *testing.T) string {
	t.Helper()

	made, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(made)}))
}

func compress(t *testing.T, data string) string {
	t.Helper()

	var out bytes.Buffer

	writer := gzip.NewWriter(&out)
	if _, err := writer.Write([]byte(data)); err != nil {
		t.Fatal(err)
	}

	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}

	return out.String()
}

// The scanner finds a credential in every encoding, at any offset of the data.
func TestFindsEveryEncoding(t *testing.T) {
	t.Parallel()

	std, quoted := base64.StdEncoding.EncodeToString, func(s string) string {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}

		return string(text)
	}
	private := newPrivateKey(t)
	block, _ := pem.Decode([]byte(private))
	lines := strings.Split(private, "\n")

	cases := map[string]struct{ value, data string }{
		"as it is":              {marker, "x" + marker},
		"base64":                {marker, std([]byte(marker))},
		"base64, one before":    {marker, std([]byte("x" + marker + "yz"))},
		"base64, two before":    {marker, std([]byte("xy" + marker + "z"))},
		"base64 for URLs":       {marker, base64.RawURLEncoding.EncodeToString([]byte("xyz" + marker))},
		"base64 in base64":      {marker, std([]byte("a" + std([]byte("xy"+marker+"z"))))},
		"basic auth":            {marker, std([]byte("x-access-token:" + marker))},
		"hexadecimal":           {marker, hex.EncodeToString([]byte(marker))},
		"HEXADECIMAL":           {marker, strings.ToUpper(hex.EncodeToString([]byte(marker)))},
		"in a query":            {marker, "https://h?a=" + url.QueryEscape(marker)},
		"in a path":             {marker, "https://h/" + url.PathEscape(marker)},
		"in JSON":               {marker, quoted(marker)},
		"a key":                 {private, private},
		"a line of a key":       {private, "x" + lines[len(lines)/2] + "y"},
		"a key as DER":          {private, string(block.Bytes)},
		"a key in JSON":         {private, quoted(private)},
		"a key in a Secret":     {private, std([]byte(private))},
		"a key in cloud-config": {private, strings.ReplaceAll(private, "\n", "\n      ")},
		"compressed":            {marker, "head" + compress(t, "x"+marker)},
		"compressed in base64":  {marker, "content: " + std([]byte(compress(t, "x"+marker))) + "\n"},
		"compressed twice":      {marker, compress(t, compress(t, marker))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var scanner secrets.Scanner

			scanner.Register(secrets.Secret{Name: "planted", Value: tc.value, Places: []string{"allowed"}})
			scanner.Scan("allowed", "", []byte(tc.data))

			if got := scanner.Findings(); len(got) != 0 {
				t.Errorf("found in an allowed place: %v", got)
			}

			scanner.Scan("elsewhere", "", []byte(tc.data))

			got := scanner.Findings()
			if len(got) == 0 {
				t.Fatal("not found")
			}

			for _, finding := range got {
				if strings.Contains(finding.String(), tc.value) || finding.Secret != "planted" || finding.Place != "elsewhere" {
					t.Errorf("finding = %v", finding)
				}
			}
		})
	}
}

// The scanner ignores data that only resembles a credential.
func TestFindsNothingElse(t *testing.T) {
	t.Parallel()

	var scanner secrets.Scanner

	scanner.Register(secrets.Secret{Name: "planted", Value: marker}, secrets.Secret{Name: "too short", Value: "linux"})
	scanner.Scan("log", "", []byte("runs on linux with "+marker[:len(marker)-1]+" and \x1f\x8b\x08 no gzip, H4sI neither"))

	if got := scanner.Findings(); len(got) != 0 {
		t.Errorf("found %v", got)
	}

	if got := scanner.ScanCounts()["log"]; got != 1 {
		t.Errorf("%d scans of the log", got)
	}
}

// A scan of a disk covers file names, files in nested folders, and targets of links.
func TestFindsSecretsOnDisk(t *testing.T) {
	t.Parallel()

	const name = "ghp_planted0123456789"

	lay := map[string]func(root string) error{
		"file": func(root string) error {
			deep := filepath.Join(root, "var", "lib", "cloud")

			return errors.Join(os.MkdirAll(deep, 0o700), os.WriteFile(filepath.Join(deep, "x"), []byte("a"+name), 0o600))
		},
		"name": func(root string) error { return os.WriteFile(filepath.Join(root, name), nil, 0o600) },
		"link": func(root string) error { return os.Symlink("/tmp/"+name, filepath.Join(root, "x")) },
	}
	for how, plant := range lay {
		t.Run(how, func(t *testing.T) {
			t.Parallel()

			var scanner secrets.Scanner

			root := t.TempDir()

			scanner.Register(secrets.Secret{Name: "planted", Value: name})

			if err := plant(root); err != nil {
				t.Fatal(err)
			}

			scanner.ScanTree("disk", root)

			if got := scanner.Findings(); len(got) == 0 {
				t.Error("not found")
			}
		})
	}
}

// The content of /proc/PID/environ may be truncated.
func TestIncompleteVariableIsIgnored(t *testing.T) {
	t.Parallel()

	for environ, want := range map[string]map[string]string{
		"":                       {},
		"TOKEN=whole\x00":        {"TOKEN": "whole"},
		"A=1\x00TOKEN=half":      {"A": "1"},
		"A=1\x00TOKEN=\x00x\x00": {"A": "1", "TOKEN": ""},
	} {
		if diff := cmp.Diff(want, parseEnviron([]byte(environ))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", environ, diff)
		}
	}
}
