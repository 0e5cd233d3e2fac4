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

// NewProgramHandler serves the bootstrap service for each architecture, as named by `uname -m`. The route
// needs no authentication, because the program holds no secret. Machines verify the download with the
// checksum in their user data.
func NewProgramHandler(programs map[string]Program) http.Handler {
	byUname := make(map[string]Program, len(programs))
	for arch, program := range programs {
		byUname[toUname(arch)] = program
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

// OpenProgram opens a program and computes its checksum. It keeps the file open, so that machines get the
// same program until the operator restarts, even if the file is replaced.
func OpenProgram(path string) (Program, error) {
	file, err := os.Open(path)
	if err != nil {
		return Program{}, fmt.Errorf("open bootstrap service: %w", err)
	}

	sum := sha256.New()

	size, err := io.Copy(sum, file)
	if err != nil {
		return Program{}, errors.Join(fmt.Errorf("read bootstrap service: %w", err), file.Close())
	}

	return Program{Content: file, Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// readVerified reads the program, and returns an error if its checksum has changed.
func (p Program) readVerified() ([]byte, error) {
	content := make([]byte, p.Size)
	if n, err := p.Content.ReadAt(content, 0); int64(n) < p.Size {
		return nil, fmt.Errorf("read bootstrap service: %w", err)
	}

	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, errclass.New(errclass.Configuration, "BootstrapServiceChanged",
			"read bootstrap service: its file has changed since the operator started: restart the operator")
	}

	return content, nil
}
