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

// detectContentType returns the content type of user data, and false if it is unknown. Like cloud-init, it
// compares the start of the text, ignores a byte order mark, leading whitespace and case, and prefers the
// longest match.
func detectContentType(text string) (string, bool) {
	start := strings.ToLower(strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n"))

	// Longer prefixes come first: #include-once before #include.
	for _, known := range []struct{ prefix, contentType string }{
		{"#cloud-config-archive", "text/cloud-config-archive"},
		{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
		{"#cloud-boothook", "text/cloud-boothook"},
		{"## template: jinja", "text/jinja2"},
		{"#include-once", "text/x-include-once-url"},
		{"#part-handler", "text/part-handler"},
		{cloudConfigHeader, typeCloudConfig},
		{"#include", "text/x-include-url"},
		{"#!", "text/x-shellscript"},
		{"content-type:", typeMultipart},
		{"mime-version:", typeMultipart},
	} {
		if strings.HasPrefix(start, known.prefix) {
			return known.contentType, true
		}
	}

	return "", false
}

// buildMultipart returns a MIME message with the user's unchanged data and the operator's cloud-config. The
// operator's part is the last one and only adds to the user's, because of mergeType.
func buildMultipart(in *Input, text, contentType string) ([]byte, error) {
	operator, err := buildOperatorConfig(in, userOverrides{}, startLast)
	if err != nil {
		return nil, err
	}

	body, err := addHeader(&yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{operator}})
	if err != nil {
		return nil, err
	}

	// The boundary is derived from the contents, so that the same input gives the same bytes.
	sum := sha256.Sum256(append([]byte(text), body...))
	boundary := "hyperfleet-" + hex.EncodeToString(sum[:16])

	var b bytes.Buffer

	fmt.Fprintf(&b, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=%q\n\n", boundary)
	fmt.Fprintf(&b, "--%s\n", boundary)

	if contentType == typeMultipart { // the text has its own headers
		b.WriteString(strings.TrimLeft(strings.TrimPrefix(text, "\ufeff"), " \t\r\n"))
	} else {
		writePart(&b, contentType, "user-data", "", []byte(text))
	}

	fmt.Fprintf(&b, "\n--%s\n", boundary)
	writePart(&b, typeCloudConfig, "hyperfleet", mergeType, body)
	fmt.Fprintf(&b, "\n--%s--\n", boundary)

	return b.Bytes(), nil
}

// mergeType makes cloud-init merge the operator's part into the user's: it appends lists, merges mappings,
// and keeps all values of the user.
const mergeType = "list(append)+dict(no_replace,recurse_list)+str()"

// writePart writes one part. It uses base64, so that no mail library changes the text.
func writePart(b *bytes.Buffer, contentType, name, merge string, body []byte) {
	fmt.Fprintf(b, "Content-Type: %s; charset=\"utf-8\"\nContent-Disposition: attachment; filename=%q\n", contentType, name)
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
