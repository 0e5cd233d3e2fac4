// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package provider

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/runner"
	"github.com/hyperfleet/hyperfleet/hypervisor/external"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/conform"
)

// defaultTimeout limits all cases together. Those of a real hypervisor take minutes each.
const defaultTimeout = 2 * time.Hour

// options holds the flags of the command.
type options struct {
	clientCert, clientKey, ca string
	only                      string
	parallel                  int
	timeout                   time.Duration
	output                    cli.Output
}

// report is the output as JSON.
type report struct {
	Address string          `json:"address"`
	Passed  int             `json:"passed"`
	Failed  int             `json:"failed"`
	Skipped int             `json:"skipped"`
	Cases   []runner.Result `json:"cases"`
}

// New returns the command `hyperfleet provider`.
func New() *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Test a hypervisor provider that is a program of its own"}
	cmd.AddCommand(newConformCommand())

	return cmd
}

func newConformCommand() *cobra.Command {
	var opts options

	cmd := &cobra.Command{
		Use:   "conform ADDRESS [-- PROGRAM [ARGUMENT]...]",
		Short: "Run the cases that every hypervisor provider must pass",
		Long: `Run the conformance cases against the provider at ADDRESS: unix:///PATH, or HOST:PORT with a client
certificate. The provider must also serve the cases' own service: the guide "Write a provider" explains
it. Run the cases against a hypervisor, or a part of it, that is used for nothing else.

With PROGRAM, the command starts the provider itself. It then also kills the provider in the middle of
each call to its hypervisor, starts it again, and continues with the same machine.

The exit code is 0 if no case failed; 1 if a case failed or the provider does not respond; 2 if the
command line is invalid.`,
		Example: "  hyperfleet provider conform unix:///tmp/provider.sock -- ./provider -address unix:///tmp/provider.sock\n" +
			"  hyperfleet provider conform provider.example.com:9443 --client-cert tls.crt --client-key tls.key --ca ca.crt -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() == 0 || cmd.ArgsLenAtDash() < 0 && len(args) > 1 || cmd.ArgsLenAtDash() > 1 {
				return cli.Usagef("provider conform: give one address, and after -- the program to start")
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, &opts, args[0], args[1:]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.clientCert, "client-cert", "", "file with the client certificate for HOST:PORT")
	flags.StringVar(&opts.clientKey, "client-key", "", "file with the key of the client certificate")
	flags.StringVar(&opts.ca, "ca", "", "file with the authorities of the provider's certificate; default: those of the system")
	flags.StringVar(&opts.only, "run", "", "cases to run: regular expressions for the levels of their names, separated by slashes")
	flags.IntVar(&opts.parallel, "parallel", 4, "number of cases that run at the same time")
	flags.DurationVar(&opts.timeout, "timeout", defaultTimeout, "time that all cases together may take")
	opts.output.AddFlag(cmd, cli.OutputText, cli.OutputJSON, cli.OutputYAML)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })

	return cmd
}

func run(cmd *cobra.Command, opts *options, address string, program []string) error {
	config, err := loadTLS(opts, address)
	if err != nil {
		return cli.Usagef("provider conform: %w", err)
	}

	ctx, stop := cli.WithTimeout(cmd, opts.timeout)
	defer stop()

	conformOptions := conform.Options{
		Address: address, TLS: config, Runner: runner.Options{Only: opts.only, Parallel: opts.parallel},
	}

	if opts.output.IsForPeople() {
		conformOptions.Runner.Report = func(result runner.Result) { printResult(cmd.OutOrStdout(), result) }
	}

	if len(program) > 0 {
		process := &process{address: address, tls: config, program: program}
		defer process.stop()

		if err := process.checkFree(ctx); err != nil {
			return fmt.Errorf("provider conform: %w", err)
		}

		if err := process.start(ctx); err != nil {
			return fmt.Errorf("provider conform: %w", err)
		}

		conformOptions.Restart = func() { process.restart(ctx) }
	}

	results, err := conform.Run(ctx, conformOptions)
	if err != nil {
		return fmt.Errorf("provider conform: %w", err)
	}

	counts := runner.Count(results)
	data := report{
		Address: address, Cases: results,
		Passed: counts[runner.Passed], Failed: counts[runner.Failed], Skipped: counts[runner.Skipped],
	}

	err = opts.output.Print(cmd.OutOrStdout(), cli.Content{Data: data, Print: func(out io.Writer, _ bool) error {
		_, err := fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", data.Passed, data.Failed, data.Skipped)

		return err
	}})

	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("provider conform: the cases did not end within %s: %w", opts.timeout, ctx.Err())
	case data.Failed > 0 || data.Passed == 0:
		return cli.Failed()
	default:
		return nil
	}
}

// printResult prints a line for a case, and its messages if it has some.
func printResult(out io.Writer, result runner.Result) {
	word := map[string]string{runner.Passed: "ok  ", runner.Failed: "FAIL", runner.Skipped: "skip"}[result.Status]
	fmt.Fprintf(out, "%s %s (%.1fs)\n", word, result.Name, result.Seconds)

	for _, message := range result.Messages {
		fmt.Fprintln(out, "     "+strings.ReplaceAll(cli.Sanitize(message), "\n", "\n     "))
	}
}

// loadTLS reads the files of the flags. It returns nil for a Unix socket.
func loadTLS(opts *options, address string) (*tls.Config, error) {
	if strings.HasPrefix(address, external.UnixScheme) {
		return nil, nil //nolint:nilnil // there is no TLS
	}

	if opts.clientCert == "" || opts.clientKey == "" {
		return nil, fmt.Errorf("connect to %s: an address HOST:PORT needs a client certificate: set --client-cert and --client-key",
			address)
	}

	var (
		spec      *v1alpha1.HypervisorTLS
		cert, key []byte
		err       error
	)

	if cert, err = os.ReadFile(opts.clientCert); err != nil {
		return nil, fmt.Errorf("read --client-cert: %w", err)
	}

	if key, err = os.ReadFile(opts.clientKey); err != nil {
		return nil, fmt.Errorf("read --client-key: %w", err)
	}

	if opts.ca != "" {
		bundle, err := os.ReadFile(opts.ca)
		if err != nil {
			return nil, fmt.Errorf("read --ca: %w", err)
		}

		spec = &v1alpha1.HypervisorTLS{CABundle: bundle}
	}

	return hypervisor.NewTLSConfig(spec, cert, key)
}
