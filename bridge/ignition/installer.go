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
	// maxText bounds what a file of an ignition may be when it is unpacked.
	maxText = maxWorker
)

// addInstaller brings to the live system what installs the DPU: its name and itself as DPF
// knows them, which DPF fills in, and a program that runs once.
func addInstaller(live fields, mode string) {
	for _, entry := range []fields{
		// DPF looks whether a template has these words (bf.cfg of BlueField's own installer).
		file("/etc/dpf/bfcfg-functions", textMode, fields{"source": "data:,bfb_pre_install%20bfb_modify_os%20bfb_post_install"}),
		file("/etc/hostname", textMode, fields{"source": "data:,{{.DPUHostName}}"}),
		file("/etc/dpf/environment", textMode, fields{
			"source": "data:,DPUName={{.DPUName}}%0ADPUNamespace={{.DPUNamespace}}%0ADPUUID={{.DPUUID}}%0ADPUMode=" + mode + "%0A",
		}),
		text(installPath, scriptMode, installScript),
	} {
		put(live, entry)
	}

	place(live, "systemd", "units", "name", fields{"name": unitName, "enabled": true, "contents": installUnit})
}

// unpack is the reverse of gzip, within bounds.
func unpack(packed []byte) ([]byte, error) {
	from, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, errors.New("it is not compressed as it says")
	}

	out, err := io.ReadAll(io.LimitReader(from, maxText+1))
	if err != nil || len(out) > maxText {
		return nil, errors.New("it is cut short, or larger than 1 MiB")
	}

	return out, nil
}
