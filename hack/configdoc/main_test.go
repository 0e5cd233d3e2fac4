// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type outer struct {
	Inner inner `yaml:"inner"`
}

type inner struct {
	CertFile string   `yaml:"certFile"`
	KeyFile  string   `yaml:"keyFile"`
	Count    int      `yaml:"count"`
	Names    []string `yaml:"names"`
}

func TestKeys(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	source := "package p\n\ntype inner struct {\n\t// CertFile and KeyFile serve\n\t// TLS. Both or neither.\n\tCertFile string\n\tKeyFile string\n" +
		"\t// Count of a | b.\n\tCount int\n\tNames []string\n}\n"

	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}

	comments, err := parseComments(dir)
	if err != nil {
		t.Fatal(err)
	}

	got := listKeys(reflect.ValueOf(outer{inner{Count: 3, Names: []string{"a", "b"}}}), "", comments)
	want := []key{
		{"inner.certFile", "string", "", "certFile and keyFile serve TLS. Both or neither."},
		{"inner.keyFile", "string", "", "certFile and keyFile serve TLS. Both or neither."},
		{"inner.count", "number", "`3`", "count of a | b."},
		{"inner.names", "list", "`[a, b]`", ""},
	}

	if diff := cmp.Diff(want, got, cmp.AllowUnexported(key{})); diff != "" {
		t.Error(diff)
	}
}

// TestEveryKeyHasAComment checks that each key has a comment.
func TestEveryKeyHasAComment(t *testing.T) {
	t.Parallel()

	comments, err := parseComments("../../" + sources)
	if err != nil {
		t.Fatal(err)
	}

	for _, k := range listKeys(defaultConfig(), "", comments) {
		if k.text == "" {
			t.Errorf("%s has no comment in %s", k.name, sources)
		}
	}
}
