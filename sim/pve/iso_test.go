// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

func buildISO(t testing.TB, label string, files map[string]string) []byte {
	t.Helper()
	in := map[string][]byte{}
	for k, v := range files {
		in[k] = []byte(v)
	}
	out, err := pve.MakeISO(label, in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestReadISO(t *testing.T) {
	t.Parallel()
	files := map[string]string{"user-data": "#cloud-config\n", "meta-data": "instance-id: i\n", "network-config": "{}"}
	both := buildISO(t, "cidata", files)
	// Without the SP entry of the root's own record the Joliet names remain.
	joliet := bytes.Replace(both, []byte{'S', 'P', 7, 1, 0xBE, 0xEF}, []byte{'X', 'P', 7, 1, 0xBE, 0xEF}, 1)
	if bytes.Equal(both, joliet) {
		t.Fatal("image has no Rock Ridge")
	}
	for name, tc := range map[string]struct {
		data []byte
		want map[string]string
	}{
		"rock ridge": {both, files},
		"joliet":     {joliet, files},
		"plain":      {newPlainISO(t, map[string]string{"a.txt": "x", "dir/b.txt": "y"}), map[string]string{"a.txt": "x", "dir/b.txt": "y"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			label, got, err := pve.ReadISO(tc.data)
			if err != nil {
				t.Fatal(err)
			}
			text := map[string]string{}
			for k, v := range got {
				text[k] = string(v)
			}
			if d := cmp.Diff(tc.want, text); d != "" {
				t.Error(d)
			}
			if label != "cidata" {
				t.Errorf("label %q", label)
			}
		})
	}
	if _, _, err := pve.ReadISO([]byte("no image")); err == nil {
		t.Error("no error for an empty image")
	}
}

// TestBrokenISO checks that the reader rejects damaged images or reads a part of them, and that it
// never hangs or crashes.
func TestBrokenISO(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	whole := buildISO(t, "cidata", map[string]string{"user-data": "x", "meta-data": "y"})
	const head = 16 * 2048
	refused := 0
	for range 500 {
		data := bytes.Clone(whole)
		for range 1 + rng.IntN(4) {
			data[head+rng.IntN(len(data)-head)] = byte(rng.IntN(256))
		}
		if _, _, err := pve.ReadISO(data[:len(data)-rng.IntN(2)*rng.IntN(len(data))]); err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

func FuzzReadISO(f *testing.F) {
	f.Add(buildISO(f, "cidata", map[string]string{"user-data": "x"}))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _, _ = pve.ReadISO(data) })
}

func compress(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

func TestParseUserData(t *testing.T) {
	t.Parallel()
	const first = "#cloud-config\nhostname: h1\nwrite_files:\n- {path: /a, content: one}\n"
	b64 := base64.StdEncoding.EncodeToString
	mixed := "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b\"\n\n--b\nContent-Type: text/x-shellscript\n\n" +
		"#!/bin/sh\n--b\nContent-Type: text/cloud-config\n\n" + first +
		"\n--b\nContent-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n"
	for name, tc := range map[string]struct {
		in    string
		host  string
		files map[string]string
	}{
		"plain":      {first, "h1", map[string]string{"/a": "one"}},
		"compressed": {compress(first), "h1", map[string]string{"/a": "one"}},
		"encodings": {"#cloud-config\nwrite_files:\n- {path: /a, encoding: b64, content: " + b64([]byte("x")) +
			"}\n- {path: /b, encoding: gz+b64, content: " + b64([]byte(compress("y"))) + "}\n", "", map[string]string{"/a": "x", "/b": "y"}},
		"later part replaces": {mixed + b64([]byte("#cloud-config\nhostname: h2\nwrite_files: [{path: /b, content: two}]\n")) +
			"\n--b--\n", "h2", map[string]string{"/b": "two"}},
		"part that appends": {mixed + b64([]byte("#cloud-config\nmerge_how: list(append)+dict(no_replace,recurse_dict)+str()\n"+
			"write_files: [{path: /b, content: two}]\n")) + "\n--b--\n", "h1", map[string]string{"/a": "one", "/b": "two"}},
		"a script alone": {"#!/bin/sh\n", "", map[string]string{}},
		"empty":          {"", "", map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, files, _, err := pve.ParseUserData([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.files, files); d != "" || host != tc.host {
				t.Errorf("host %q, files %s", host, d)
			}
		})
	}
	_, _, modes, err := pve.ParseUserData([]byte("#cloud-config\nwrite_files:\n- {path: /a, permissions: '0750'}\n- {path: /b}\n"))
	if err != nil || modes["/a"] != 0o750 || modes["/b"] != 0o644 {
		t.Errorf("modes %v %v", modes, err)
	}
	for _, bad := range []string{
		"#cloud-config\n\t- x", "#cloud-config\nwrite_files: [{content: x}]",
		"#cloud-config\nwrite_files: [{path: /a, encoding: rot13}]", "Content-Type: text/plain\n\nx", "\x1f\x8bxx",
		"#cloud-config\nwrite_files: [{path: /a, permissions: '9'}]",
	} {
		if _, _, _, err := pve.ParseUserData([]byte(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func FuzzParseUserData(f *testing.F) {
	f.Add([]byte("#cloud-config\nwrite_files: [{path: /a, content: x}]"))
	f.Add([]byte("Content-Type: multipart/mixed; boundary=b\n\n--b\n\n#cloud-config\n--b--"))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _, _, _ = pve.ParseUserData(data) })
}
