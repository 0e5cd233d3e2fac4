// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
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
		http.ServeContent(w, r, "bootstrap-service", time.Time{}, io.NewSectionReader(program.Content, 0, program.Size))
	})
}

// OpenProgram takes a program's checksum and keeps its file open: who puts another file in
// its place gives machines of this process no other program.
func OpenProgram(path string) (Program, error) {
	file, err := os.Open(path)
	if err != nil {
		return Program{}, fmt.Errorf("read bootstrap service: %w", err)
	}

	sum := sha256.New()

	size, err := io.Copy(sum, file)
	if err != nil {
		return Program{}, errors.Join(fmt.Errorf("read bootstrap service: %w", err), file.Close())
	}

	return Program{Content: file, Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// read gives the program, if it is what its checksum says.
func (p Program) read() ([]byte, error) {
	content := make([]byte, p.Size)
	if n, err := p.Content.ReadAt(content, 0); int64(n) < p.Size {
		return nil, fmt.Errorf("read bootstrap service: %w", err)
	}

	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, errclass.New(errclass.Configuration, "BootstrapServiceChanged",
			"read bootstrap service: its file is not what it was when the operator started: restart the operator")
	}

	return content, nil
}
