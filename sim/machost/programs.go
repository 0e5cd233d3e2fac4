// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
)

// Programs holds the programs that a test pushes to a simulated host, in place of the programs in
// the operator's image. The programs are bash scripts.
type Programs struct {
	// Kubelet is the kubelet of a Mac and the agent of a Linux host. It runs machines; see
	// [Host.StartMachine].
	Kubelet []byte
	// Tart is a release of Tart as an archive.
	Tart []byte
	// Tailscale, Tailscaled and NodeExporter are the programs with these names.
	Tailscale, Tailscaled, NodeExporter []byte
	// Crashing exits shortly after its start. It can replace any of the programs.
	Crashing []byte
}

// NewPrograms returns the programs of a version. Programs of different versions behave the same but
// differ in their bytes.
func NewPrograms(version string) (Programs, error) {
	var errs []error

	read := func(name string) []byte {
		text, err := fs.ReadFile(boxFiles, "box/programs/"+name+".sh")
		errs = append(errs, err)

		return append(text, "# version "+version+"\n"...)
	}

	p := Programs{
		Kubelet: read("machines"), Tailscale: read("tailscale"), Tailscaled: read("tailscaled"),
		NodeExporter: read("forever"), Crashing: read("crash"),
	}

	var err error

	p.Tart, err = packArchive("tart.app/Contents/MacOS/tart", read("forever"))

	return p, errors.Join(append(errs, err)...)
}

func packArchive(name string, content []byte) ([]byte, error) {
	var out bytes.Buffer

	compressed := gzip.NewWriter(&out)
	writer := tar.NewWriter(compressed)

	err := writer.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Format: tar.FormatUSTAR})
	if err == nil {
		_, err = writer.Write(content)
	}

	if err := errors.Join(err, writer.Close(), compressed.Close()); err != nil {
		return nil, fmt.Errorf("pack %s: %w", name, err)
	}

	return out.Bytes(), nil
}
