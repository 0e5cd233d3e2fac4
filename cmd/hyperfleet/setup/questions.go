// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// question is a question and the flag that answers it. target receives the answer. The terminal does not show
// the answer to a secret question.
type question struct {
	text, flag string
	target     *string
	secret     bool
}

// hypervisorQuestions returns the questions about Proxmox VE that have no answer yet.
func (o *options) hypervisorQuestions() []question {
	return filterUnanswered([]question{
		{text: "Proxmox VE endpoint (host or URL)", flag: "endpoint", target: &o.Endpoint},
		{text: "ID of the Proxmox VE API token, such as hyperfleet@pve!operator", flag: "token-id", target: &o.TokenID},
		{text: "Secret of the token", flag: "token-secret-file", target: &o.TokenSecret, secret: true},
		{text: "Name of the Proxmox VE template for machines", flag: "template", target: &o.Template},
	})
}

// platformQuestions returns the questions about GitHub that have no answer yet.
func (o *options) platformQuestions() []question {
	var all []question
	if o.Organization == "" && o.Repository == "" {
		all = append(all, question{text: "GitHub organization", flag: "organization", target: &o.Organization})
	}

	if o.AppID == "" {
		all = append(all, question{text: "GitHub token", flag: "github-token-file", target: &o.GitHubToken, secret: true})
	}

	return filterUnanswered(all)
}

func filterUnanswered(all []question) []question {
	var out []question

	for _, q := range all {
		if *q.target == "" {
			out = append(out, q)
		}
	}

	return out
}

// unknownCertificateError reports that this machine does not trust the CA of a server's certificate.
type unknownCertificateError struct{ endpoint, fingerprint string }

// Error returns a message with the fingerprint and the flag that accepts the certificate.
func (e *unknownCertificateError) Error() string {
	return fmt.Sprintf("this machine does not trust the CA of the certificate of %s: compare its fingerprint with "+
		"NODE > System > Certificates in the web interface, and use --fingerprint %s", e.endpoint, e.fingerprint)
}

func (e *unknownCertificateError) question() string {
	return fmt.Sprintf("This machine does not trust the CA of the certificate of %s. "+
		"The fingerprint of the certificate is\n\n    %s\n\n"+
		"Does NODE > System > Certificates in the web interface show the same fingerprint?", e.endpoint, e.fingerprint)
}

// verifyHypervisor checks the answers about the hypervisor, and normalizes the endpoint. It returns an
// unknownCertificateError if the server needs a fingerprint. On success it returns a description of the
// hypervisor.
func (o *options) verifyHypervisor(ctx context.Context) (string, error) {
	endpoint, err := normalizeEndpoint(o.Endpoint)
	if err != nil {
		return "", err
	}

	o.Endpoint = endpoint

	if o.Fingerprint == "" && len(o.CABundle) == 0 {
		fingerprint, trusted, err := probeCertificate(ctx, endpoint)
		if err != nil {
			return "", err
		}

		if !trusted {
			return "", &unknownCertificateError{endpoint: endpoint, fingerprint: fingerprint}
		}
	}

	result, err := o.checkHypervisor(ctx)

	return result, o.explainTLSError(err)
}

// explainTLSError returns certificate errors with the names of flags in place of the fields of a
// HypervisorCluster.
func (o *options) explainTLSError(err error) error {
	const fix = "compare the fingerprint with NODE > System > Certificates in the web interface, and use --fingerprint "

	if mismatch, ok := errors.AsType[*hypervisor.FingerprintError](err); ok {
		return errors.New("the certificate of " + o.Endpoint + " does not match --fingerprint: " + fix + mismatch.Got)
	}

	if rejection, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(rejection.UnverifiedCertificates) > 0 {
		return fmt.Errorf("the CA in --ca-file does not verify the certificate of %s: %w: "+
			"use the CA that signed the certificate, or %s%s", o.Endpoint, rejection.Err, fix,
			hypervisor.FormatFingerprint(sha256.Sum256(rejection.UnverifiedCertificates[0].Raw)))
	}

	return err
}

// verifyPlatform checks the answers about the CI platform. On success it returns a description.
func (o *options) verifyPlatform(ctx context.Context) (string, error) {
	if err := o.checkPlatform(ctx); err != nil {
		return "", err
	}

	return "the credentials are valid for " + o.Organization + o.Repository, nil
}

// prompter asks the user questions.
type prompter struct {
	in       io.Reader
	out      io.Writer
	terminal bool
	lines    *bufio.Reader
}

// askAll asks the questions and stores the answers. Without a terminal, it returns an error that lists the
// flags of all questions.
func (a *prompter) askAll(questions []question) error {
	if len(questions) > 0 && !a.terminal {
		flags := make([]string, 0, len(questions))
		for _, q := range questions {
			flags = append(flags, "--"+q.flag)
		}

		return cli.Usagef("cannot ask questions without a terminal: give %s", strings.Join(flags, ", "))
	}

	for _, q := range questions {
		for *q.target == "" {
			fmt.Fprintf(a.out, "%s: ", q.text)

			answer, err := a.readAnswer(q.secret)
			if err != nil {
				return err
			}

			*q.target = strings.TrimSpace(answer)
		}
	}

	return nil
}

// confirm asks a yes-or-no question about a certificate. It returns an error unless the answer is y or yes.
func (a *prompter) confirm(text string) error {
	fmt.Fprintf(a.out, "%s [y/N] ", text)

	answer, err := a.readAnswer(false)
	if err != nil {
		return err
	}

	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("the certificate was not accepted, and no data was sent")
	}

	return nil
}

func (a *prompter) readAnswer(secret bool) (string, error) {
	if file, ok := a.in.(*os.File); ok && secret {
		text, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(a.out)

		if err != nil {
			return "", fmt.Errorf("read answer: %w", err)
		}

		return string(text), nil
	}

	if a.lines == nil {
		a.lines = bufio.NewReader(a.in)
	}

	text, err := a.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read answer: %w", err)
	}

	return text, nil
}
