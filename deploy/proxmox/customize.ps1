# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prepares an installation of Windows for HyperFleet's machines. Run the script as an administrator in a VM that becomes a
# template, from a folder (or a CD) with these files:
#
#   bootstrap-service.exe    HyperFleet's program in the machine (required)
#   CloudbaseInitSetup.msi   cloudbase-init, with which machines get the names that the operator gives them
#   actions-runner.zip       GitHub's runner, so that machines do not have to download it
#   sysprep.xml, cloudbase-init.conf, cloudbase-init-unattend.conf   beside this script in deploy/proxmox
#
# With -Sysprep, the script generalizes Windows at the end, and you only have to shut down the VM.
param([switch]$Sysprep)

$ErrorActionPreference = 'Stop'
$here = $PSScriptRoot
$folder = "$env:ProgramFiles\HyperFleet"
$service = 'HyperFleetBootstrap'

function Install-BootstrapService {
    if (-not (Test-Path "$here\bootstrap-service.exe")) {
        throw "$here\bootstrap-service.exe is missing: copy HyperFleet's bootstrap service to this path"
    }

    New-Item -ItemType Directory -Force -Path $folder | Out-Null
    Copy-Item "$here\bootstrap-service.exe", "$here\sysprep.xml", "$here\cloudbase-init-unattend.conf" $folder

    # The inner quotation marks are part of the path: without them, Windows would start C:\Program.exe if it exists.
    if (-not (Get-Service $service -ErrorAction SilentlyContinue)) {
        $path = "`"$folder\bootstrap-service.exe`""
        New-Service -Name $service -BinaryPathName $path -DisplayName 'HyperFleet bootstrap service' | Out-Null
    }

    & sc.exe config $service start= delayed-auto | Out-Null
    if ($LASTEXITCODE -ne 0) {
        throw "configure the service ${service}: exit code $LASTEXITCODE"
    }
}

function Install-CloudbaseInit {
    if (-not (Test-Path "$here\CloudbaseInitSetup.msi")) {
        return
    }

    $arguments = '/i', "`"$here\CloudbaseInitSetup.msi`"", '/qn', '/norestart', 'RUN_SERVICE_AS_LOCAL_SYSTEM=1'
    $install = Start-Process -FilePath msiexec.exe -ArgumentList $arguments -Wait -PassThru
    if ($install.ExitCode -notin 0, 3010) {
        throw "install cloudbase-init: exit code $($install.ExitCode)"
    }

    Copy-Item "$here\cloudbase-init.conf" "$env:ProgramFiles\Cloudbase Solutions\Cloudbase-Init\conf\cloudbase-init.conf" -Force
}

function Install-Runner {
    if (Test-Path "$here\actions-runner.zip") {
        Expand-Archive -Path "$here\actions-runner.zip" -DestinationPath C:\actions-runner -Force
    }
}

# A machine runs only one job, so it neither sleeps nor installs updates. Windows 11 runs no scripts of PowerShell by
# default, and the runner starts the hook and the steps of jobs as scripts.
function Set-Windows {
    $shell = 'HKLM:\SOFTWARE\Microsoft\PowerShell\1\ShellIds\Microsoft.PowerShell'
    Set-ItemProperty -Path $shell -Name ExecutionPolicy -Value RemoteSigned

    # When Windows shuts down, the service needs up to 20 seconds to stop the job and to send the last report. Windows waits
    # for a shorter time by default.
    Set-ItemProperty -Path 'HKLM:\SYSTEM\CurrentControlSet\Control' -Name WaitToKillServiceTimeout -Value 20000

    & powercfg.exe /change standby-timeout-ac 0
    & powercfg.exe /hibernate off

    $policies = 'HKLM:\SOFTWARE\Policies\Microsoft\Windows\WindowsUpdate\AU'
    New-Item -Path $policies -Force | Out-Null
    Set-ItemProperty -Path $policies -Name NoAutoUpdate -Value 1 -Type DWord
}

# Delete the password of the account with which the template was made, and what the clones do not need. WinRM
# stays open until Windows restarts.
function Remove-Credentials {
    $logon = 'HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion\Winlogon'
    Remove-ItemProperty -Path $logon -Name AutoAdminLogon, DefaultPassword, AutoLogonCount -ErrorAction SilentlyContinue
    $answers = "$env:SystemRoot\Panther\unattend.xml", "$env:SystemRoot\Panther\Unattend\unattend.xml"
    Remove-Item $answers -ErrorAction SilentlyContinue
    Set-Service -Name WinRM -StartupType Disabled
}

function Invoke-Sysprep {
    $state = 'HKLM:\SOFTWARE\Microsoft\Windows\CurrentVersion\Setup\State'
    $done = 'IMAGE_STATE_GENERALIZE_RESEAL_TO_OOBE'

    & "$env:SystemRoot\System32\Sysprep\sysprep.exe" /generalize /oobe /mode:vm /quiet /quit "/unattend:$folder\sysprep.xml"

    for ($i = 0; (Get-ItemProperty $state).ImageState -ne $done; $i++) {
        if ($i -ge 120) {
            throw "sysprep has not ended after 20 minutes: read $env:SystemRoot\System32\Sysprep\Panther\setuperr.log"
        }

        Start-Sleep -Seconds 10
    }
}

Install-BootstrapService
Install-CloudbaseInit
Install-Runner
Set-Windows
Remove-Credentials

if ($Sysprep) {
    Invoke-Sysprep
}

exit 0 # powercfg.exe fails on hardware that cannot sleep
