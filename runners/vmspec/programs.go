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

// HandlePrograms adds the routes of the bootstrap service to mux. Machines with bootstrap.delivery download get it at
// /bootstrap/ARCH, with the name of the architecture that `uname -m` prints, and verify it with the checksum in their user
// data. User data of users gets it under the name of the file in a release, as document 000 does. The routes need no
// authentication, because the program holds no secret.
func HandlePrograms(mux *http.ServeMux, programs map[string]Program) {
	byUname := make(map[string]Program, len(programs))
	for arch, program := range programs {
		byUname[toUname(arch)] = program
	}

	mux.Handle("GET /bootstrap/{arch}", newProgramHandler(byUname, func(r *http.Request) string { return r.PathValue("arch") }))

	for file, arch := range map[string]string{"bootstrap-service-linux-amd64": "x64", "bootstrap-service-linux-arm64": "arm64"} {
		mux.Handle("GET /"+file, newProgramHandler(programs, func(*http.Request) string { return arch }))
	}
}

// newProgramHandler serves the program of the architecture that a request names.
func newProgramHandler(programs map[string]Program, findArch func(*http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		program, ok := programs[findArch(r)]
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
