// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"time"
)

// ProgramPattern is the route of Programs.
const ProgramPattern = "GET /bootstrap/{arch}"

// Programs serves the bootstrap service by architecture, as `uname -m` says it. There is
// nothing secret in it; whoever downloads it has its checksum from elsewhere.
func Programs(programs map[string]Program) http.Handler {
	byUname := make(map[string]Program, len(programs))
	for arch, program := range programs {
		byUname[uname(arch)] = program
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		program, ok := byUname[r.PathValue("arch")]
		if !ok {
			http.Error(w, "no bootstrap service for this architecture", http.StatusNotFound)

			return
		}

		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("ETag", `"`+program.SHA256+`"`)
		http.ServeContent(w, r, "bootstrap-service", time.Time{}, bytes.NewReader(program.Content))
	})
}

// ReadProgram reads a program from a file.
func ReadProgram(file string) (Program, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Program{}, fmt.Errorf("read bootstrap service: %w", err)
	}

	sum := sha256.Sum256(content)

	return Program{Content: content, SHA256: hex.EncodeToString(sum[:])}, nil
}
