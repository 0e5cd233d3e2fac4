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

// Programs are programs that run at a simulated host, to be pushed there: what the
// operator's image carries for real ones. They are scripts of bash.
type Programs struct {
	// Kubelet is the kubelet of a Mac, and the agent of a Linux host. It runs machines, see
	// [Host.StartMachine].
	Kubelet []byte
	// Tart is a release of Tart: an archive.
	Tart []byte
	// Tailscale, Tailscaled and NodeExporter.
	Tailscale, Tailscaled, NodeExporter []byte
	// Crashing ends soon after it was started, whatever it should be.
	Crashing []byte
}

// NewPrograms gives programs of a version: those of two versions do the same and differ in
// their bytes.
func NewPrograms(version string) (Programs, error) {
	var errs []error

	read := func(name string) []byte {
		text, err := fs.ReadFile(files, "box/programs/"+name+".sh")
		errs = append(errs, err)

		return append(text, "# version "+version+"\n"...)
	}

	p := Programs{
		Kubelet: read("machines"), Tailscale: read("tailscale"), Tailscaled: read("tailscaled"),
		NodeExporter: read("forever"), Crashing: read("crash"),
	}

	var err error

	p.Tart, err = archive("tart.app/Contents/MacOS/tart", read("forever"))

	return p, errors.Join(append(errs, err)...)
}

func archive(name string, content []byte) ([]byte, error) {
	var out bytes.Buffer

	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)

	err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Format: tar.FormatUSTAR})
	if err == nil {
		_, err = files.Write(content)
	}

	if err := errors.Join(err, files.Close(), packed.Close()); err != nil {
		return nil, fmt.Errorf("pack %s: %w", name, err)
	}

	return out.Bytes(), nil
}
