// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ignition

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"io"
)

var (
	//go:embed files/install.sh
	installScript string
	//go:embed files/install.service
	installUnit string
)

const (
	installPath = "/usr/local/bin/hyperfleet-install"
	unitName    = "hyperfleet-install.service"
	// maxFileBytes bounds the size of a decompressed file of an ignition.
	maxFileBytes = maxWorkerBytes
)

// addInstaller adds to the live system the script that installs the DPU, a unit that runs the script
// once, and the names and the environment of the DPU, which DPF renders.
func addInstaller(live fields, mode string) {
	for _, entry := range []fields{
		// DPF checks that a template contains these words (from bf.cfg of BlueField's own installer).
		newFile("/etc/dpf/bfcfg-functions", textMode, fields{"source": "data:,bfb_pre_install%20bfb_modify_os%20bfb_post_install"}),
		newFile("/etc/hostname", textMode, fields{"source": "data:,{{.DPUHostName}}"}),
		newFile("/etc/dpf/environment", textMode, fields{
			"source": "data:,DPUName={{.DPUName}}%0ADPUNamespace={{.DPUNamespace}}%0ADPUUID={{.DPUUID}}%0ADPUMode=" + mode + "%0A",
		}),
		newTextFile(installPath, scriptMode, installScript),
	} {
		setFile(live, entry)
	}

	setEntry(live, "systemd", "units", "name", fields{"name": unitName, "enabled": true, "contents": installUnit})
}

// decompress decompresses gzip data of at most 1 MiB (decompressed).
func decompress(packed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, errors.New("it is not valid gzip data")
	}

	out, err := io.ReadAll(io.LimitReader(reader, maxFileBytes+1))
	if err != nil || len(out) > maxFileBytes {
		return nil, errors.New("it is truncated or larger than 1 MiB")
	}

	return out, nil
}
