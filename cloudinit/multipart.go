// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Content types of user data, as cloud-init names them.
const (
	typeCloudConfig = "text/cloud-config"
	typeMultipart   = "multipart"
)

// userDataKind tells a text's content type by its beginning, the way cloud-init does:
// blanks before it and case do not count, the longest beginning wins.
func userDataKind(text string) (string, bool) {
	start := strings.ToLower(strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n"))

	for _, k := range []struct{ prefix, kind string }{
		{"#cloud-config-archive", "text/cloud-config-archive"},
		{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
		{"#cloud-boothook", "text/cloud-boothook"},
		{"## template: jinja", "text/jinja2"},
		{"#include-once", "text/x-include-once-url"},
		{"#part-handler", "text/part-handler"},
		{cloudConfig, typeCloudConfig},
		{"#include", "text/x-include-url"},
		{"#!", "text/x-shellscript"},
		{"content-type:", typeMultipart},
		{"mime-version:", typeMultipart},
	} {
		if strings.HasPrefix(start, k.prefix) {
			return k.kind, true
		}
	}

	return "", false
}

// multipart puts the user's data, unchanged, and the operator's cloud-config into one
// MIME message. The operator's part comes last and only adds: see mergeType.
func multipart(in *Input, text, kind string) ([]byte, error) {
	ours, err := runtimeConfig(in, userOverrides{}, false)
	if err != nil {
		return nil, err
	}

	body, err := withHeader(&yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{ours}})
	if err != nil {
		return nil, err
	}

	// From the contents, so that the same input gives the same bytes.
	sum := sha256.Sum256(append([]byte(text), body...))
	boundary := "hyperfleet-" + hex.EncodeToString(sum[:16])

	var b bytes.Buffer

	fmt.Fprintf(&b, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=%q\n\n", boundary)
	fmt.Fprintf(&b, "--%s\n", boundary)

	if kind == typeMultipart { // has headers of its own
		b.WriteString(strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n"))
	} else {
		writePart(&b, kind, "user-data", "", []byte(text))
	}

	fmt.Fprintf(&b, "\n--%s\n", boundary)
	writePart(&b, typeCloudConfig, "hyperfleet", mergeType, body)
	fmt.Fprintf(&b, "\n--%s--\n", boundary)

	return b.Bytes(), nil
}

// mergeType makes cloud-init add our part to the user's: lists append, mappings merge,
// and what the user gave stays.
const mergeType = "list(append)+dict(no_replace,recurse_list)+str()"

// writePart writes one part in base64, which no mail library can misread.
func writePart(b *bytes.Buffer, kind, name, merge string, body []byte) {
	fmt.Fprintf(b, "Content-Type: %s; charset=\"utf-8\"\nContent-Disposition: attachment; filename=%q\n", kind, name)
	b.WriteString("Content-Transfer-Encoding: base64\n")

	if merge != "" {
		fmt.Fprintf(b, "X-Merge-Type: %s\n", merge)
	}

	b.WriteByte('\n')

	text := base64.StdEncoding.EncodeToString(body)
	for len(text) > 76 {
		b.WriteString(text[:76] + "\n")
		text = text[76:]
	}

	b.WriteString(text + "\n")
}
