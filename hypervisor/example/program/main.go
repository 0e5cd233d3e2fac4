// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command program is the example provider as a program of its own. It is the example for
// docs/guides/write-a-provider.md, and no release contains it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/conform"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/server"
)

func main() {
	var options server.Options

	flag.StringVar(&options.Address, "address", "", "unix:///PATH or HOST:PORT at which the program listens")
	flag.StringVar(&options.CertFile, "cert", "", "file with the certificate for HOST:PORT")
	flag.StringVar(&options.KeyFile, "key", "", "file with the key of the certificate")
	flag.StringVar(&options.ClientCAFile, "client-ca", "", "file with the authorities of client certificates")

	state := flag.String("state", "", "folder with the machines")
	isConformance := flag.Bool("conformance", false, "serve the cases of `hyperfleet provider conform`, too")

	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if err := run(ctx, options, *state, *isConformance); err != nil {
		fmt.Fprintln(os.Stderr, "example provider:", err)
		os.Exit(1) //nolint:gocritic // the process ends, and with it its handler of signals
	}
}

func run(ctx context.Context, options server.Options, state string, isConformance bool) error {
	cloud := example.NewCloud(filepath.Join(state, "machines.json"))
	lab := &example.Lab{Folder: state}

	program := server.Program{
		Name: "example", Version: "1",
		New: func(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
			id, isCase := config.Settings[example.SettingCase]
			if !isCase || !isConformance {
				return example.Connect(cloud, config, options)
			}

			caseCloud, err := lab.Cloud(id)
			if err != nil {
				return nil, err
			}

			return example.Connect(caseCloud, config, options)
		},
	}

	if isConformance {
		program.Register = conform.Register(lab)
	}

	return server.Run(ctx, options, program)
}
