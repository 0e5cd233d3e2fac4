// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package recordings_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const recordingsDir = "testdata/proxmox-ve-9.2"

// exchange is one line of a recording: a request and the response of Proxmox VE, or an event.
type exchange struct {
	// ID names the exchange within all recordings.
	ID string `json:"id"`
	// As is the caller: see newCallers.
	As     string `json:"as"`
	Method string `json:"method"`
	// Path is below /api2/json, or below /api2/FORMAT if Format is set. URL is a whole path instead.
	Path   string `json:"path"`
	Format string `json:"format"`
	URL    string `json:"url"`
	// Query, Form and JSON are parameters. A value is a string or a list of strings; in JSON, any value.
	Query map[string]any  `json:"query"`
	Form  map[string]any  `json:"form"`
	JSON  json.RawMessage `json:"json"`
	// Multipart is the parts of an upload.
	Multipart []part `json:"multipart"`
	// Raw is the body of the request or, if Method is empty, all of the request's bytes.
	Raw string `json:"raw"`

	Status int             `json:"status"`
	Reason string          `json:"reason"`
	Body   json.RawMessage `json:"body"`
	Text   string          `json:"text"`
	// Answer is all of the response's bytes, if Method is empty.
	Answer string `json:"answer"`
	Error  string `json:"error"`
	// TLS is the version of TLS, if Method is empty. It is empty without TLS.
	TLS string `json:"tls"`

	// Event is what was done to a node between two requests: hang, wake, cut or join.
	Event    string `json:"event"`
	Node     string `json:"node"`
	Scenario string `json:"scenario"`
}

// part is one part of a multipart request: a value (Data) or a file of Bytes zero bytes.
type part struct {
	Name     string `json:"name"`
	Data     string `json:"data"`
	Filename string `json:"filename"`
	Type     string `json:"type"`
	Bytes    int    `json:"bytes"`
}

// readRecording returns the exchanges of a file. An ID that occurs again gets a suffix.
func readRecording(t *testing.T, name string) []exchange {
	t.Helper()

	file, err := os.Open(filepath.Join(recordingsDir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()

	var out []exchange

	seen := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		var e exchange

		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.UseNumber()

		if err := decoder.Decode(&e); err != nil {
			t.Fatalf("%s:%d: %v", name, len(out)+1, err)
		}

		e.ID = strings.TrimPrefix(e.ID, "/")
		seen[e.ID]++
		if seen[e.ID] > 1 {
			e.ID = fmt.Sprintf("%s (%d)", e.ID, seen[e.ID])
		}

		out = append(out, e)
	}

	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}

	return out
}
